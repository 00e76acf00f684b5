"""Who is alive, and how a member may be heard: deadlines, lost connections, held heartbeats."""
