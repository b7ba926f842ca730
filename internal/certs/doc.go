// Package certs owns the certificates of the process. It reads their files, follows changes
// of the files while the process runs, and makes listeners and connections that use them.
//
// It never interprets the data of a connection. Invariant: whatever happens to the files, a
// handshake uses one complete set of certificate, key and authorities: the newest set that passed
// the checks.
package certs
