// Package docs embeds the documents that the server serves. It contains no logic. Invariant: the
// server serves these files byte for byte.
package docs

import _ "embed"

// OpenAPI is the contract of the public API, in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// Operating is the runbook with its how-tos, in Markdown.
//
//go:embed OPERATING.md
var Operating []byte
