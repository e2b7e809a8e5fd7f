"""Local copies of stores: their files, what is wrong with them, and who makes column files of them."""
