"""Google Cloud Storage and Azure Blob Storage as places of blobs. What differs is in one module for each service."""
