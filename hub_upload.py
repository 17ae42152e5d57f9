"""Share a model folder on the Hugging Face Hub: same as `scratch upload`."""

from modeling_scratch.__main__ import main

if __name__ == "__main__":
    main("upload")
