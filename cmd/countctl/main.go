// Command countctl works on a countd server through its HTTP API.
//
// It owns the command line, what is printed and the exit codes, which scripts
// may rely on: 0 when all that was asked holds, 1 when not, 2 on wrong usage.
// It never speaks anything but the public API, and never sends an increment again
// in a way that can count twice.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // of go-redis, which writes to stderr what the error says again
	// The first signal ends the command in order; after it the default is back
	// and a second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv}))
}
