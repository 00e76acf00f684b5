"""Security of the broker's listeners: TLS, SASL logins, and the settings and files of both."""
