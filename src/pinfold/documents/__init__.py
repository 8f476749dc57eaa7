"""Every versioned JSON that Pinfold prints, serves or writes for others, as one Struct each.

Whoever knows the subject makes the document, whoever asks for it reads it, and the JSON Schemas and
the OpenAPI document are generated from the same Structs.  Only msgspec is needed here: a client
knows no more of an agent than its documents.
"""
