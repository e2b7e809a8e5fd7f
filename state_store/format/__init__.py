"""The stored formats of a store: names, keys and objects. Nothing here touches a disk."""
