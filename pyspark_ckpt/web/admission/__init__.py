"""Who may take up the time of the web page: connections that send a request, and requests that have the token."""
