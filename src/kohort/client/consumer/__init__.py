"""Reading: what is fetched, what is handed out, where it stands, what is committed."""
