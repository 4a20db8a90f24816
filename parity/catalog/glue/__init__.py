"""Functions that rows name by dotted path, where no function of torch takes the drawn arguments as they are. Rows never import
them."""
