// Command countctl operates a countd server through its HTTP API.
//
// It owns the command line, its output and the exit codes, which scripts may rely on: 0 for
// success, 1 for failure, 2 for wrong usage. It uses the public API only, and never repeats
// an increment in a way that could count twice.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // of go-redis, which repeats the error on stderr
	// The first signal ends the command in order; after it the default is back
	// and a second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv}))
}
