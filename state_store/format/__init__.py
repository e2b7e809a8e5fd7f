"""What lies on disk: names, keys, and the objects of a store. Nothing here touches a disk."""
