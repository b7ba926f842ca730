package resp

// Error is a complete error text, including its code.
type Error string

func (e Error) Error() string { return string(e) }

// Errors of Redis for arguments.
const (
	ErrNotInteger    Error = "ERR value is not an integer or out of range"
	ErrSyntax        Error = "ERR syntax error"
	ErrInvalidCursor Error = "ERR invalid cursor"
)

// ArgumentError returns the error for the fault of an argument, most often a key.
func ArgumentError(text string) error { return Error("ERR " + text) }

// FieldError returns the error for an argument, in the format of the HTTP API.
func FieldError(field, problem string) error { return ArgumentError(field + ": " + problem) }
