"""Parts that several rooms share: authenticated frames, process identity, Java children, metrics over HTTP."""
