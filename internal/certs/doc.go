// Package certs owns the certificates of the process. It reads their files, follows changes
// of the files while the process runs, and makes listeners and connections that use them.
//
// It never interprets the data of a connection. Invariant: whatever happens to the files, a
// handshake uses one complete set of certificate, key and authorities. The set is the newest one
// that passed the checks.
package certs
