package codec

import (
	"encoding/json"
	"fmt"
	"strings"
)

// DecodeJSON decodes body into a value. It refuses unknown fields, and anything after the first
// JSON value.
func DecodeJSON(body []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.InputOffset() != int64(len(body)) {
		return fmt.Errorf("%d bytes after the JSON", int64(len(body))-d.InputOffset())
	}
	return nil
}
