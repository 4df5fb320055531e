"""The ONNX codec: messages, types, attributes, tensors and external data, in both directions.

The ONNX reader (`frontends.onnx`) and the ONNX writer (`backends.onnx`) share it.

A large tensor passes from file to file without being in memory as a whole:

1. `streaming.extract_payloads` scans a large file, replaces every large `raw_data` by a placeholder
   of 24 bytes, and returns the replaced parts of the file as `FilePart`s (`ir.payload`): file,
   offset and length.
2. protobuf parses the short message that remains. The importer wraps each tensor as an
   `OnnxTensor`, whose `payload` is the FilePart that the placeholder names. External data becomes a
   FilePart, too.
3. A pass that multiplies a weight makes a `ScaledTensor` (`ir.tensor`): it computes nothing yet.
4. The writer writes a placeholder for it (`streaming.make_placeholder`), so the emitted message is
   short as well.
5. `streaming.insert_payloads` splits the serialized model at its placeholders and corrects the
   lengths of the messages around them. The result is a list of bytes and payloads.
6. `backends.onnx.saving` writes the list. The system copies FileParts; a ScaledTensor is computed
   in blocks of 1 MiB while a thread writes the blocks before
   (`background_writer.BackgroundWriter`).

`streaming.materialize` makes a complete message of one with placeholders, if it is needed in
memory.
"""
