"""Google Cloud Storage and Azure Blob Storage as places of blobs. Each service's own code is in one module."""
