"""Caches of shared prompt beginnings, kept on disk so that the next run need not compute them.

    store.py     what the engine asks: find, load, save
    caches.py    mlx-lm's caches <-> named arrays and a description of them
    saver.py     the thread that writes
    index.py     which prefixes there are, in SQLite; statements.py its SQL
    blocks.py    chained hashes of token ids, by which prefixes are found
    elsewhere.py prefixes at a URL, for several machines
    eviction.py  what goes when the size limit is reached
    files.py     private files that are whole or absent
    catalog.py   what the command `batchrun cache` asks; needs no MLX

A folder has one index for all models and a subfolder of safetensors files for each. Whatever is
wrong with it, a run only becomes slower: an entry is used only if its checksum is the index's and
it names the very tokens it was asked for. Knows nothing of rows, prompts or batches.
"""
