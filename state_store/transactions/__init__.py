"""One commit of one store, from the ticket to the acknowledgement."""
