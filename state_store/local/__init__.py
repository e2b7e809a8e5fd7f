"""Local copies of stores: their files, their damage, and the process that writes their column files."""
