// Package docs holds those documents that the server hands out. It owns no code: its
// invariant is that what is served is the file that is reviewed.
package docs

import _ "embed"

// OpenAPI is the contract of the public API, in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
