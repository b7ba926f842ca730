// Package certs owns the certificates of the process: it reads their files, follows changes
// of the files while the process runs, and makes listeners and connections that use them.
//
// It knows nothing of what travels over a connection. Invariant: whatever becomes of the
// files, a handshake uses one complete set of certificate, key and authorities that was
// checked, the newest such set.
package certs
