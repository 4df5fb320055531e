"""What a fold map knows, in the forms that quantizers take."""
