package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// ErrNotYet is returned if the wait of a command ends before the cluster has carried out the order.
var ErrNotYet = errors.New("not done in time; the cluster continues")

// goesOnError is returned by a command that was interrupted while the cluster carries out its
// order. advice tells the operator how the order continues and how to end it.
type goesOnError struct{ advice string }

func (e *goesOnError) Error() string { return "interrupted, but the cluster continues: " + e.advice }

// GoesOn returns a goesOnError if err is the error of an interrupted wait. Otherwise it returns
// err.
func GoesOn(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		return &goesOnError{fmt.Sprintf(format, args...)}
	}
	return err
}

// Await calls check until waitsFor, the reason to wait, is "". It prints each new reason. It also
// waits after a retryable error, such as a node that does not answer. After the time wait, it
// returns ErrNotYet.
func (c *CLI) Await(ctx context.Context, wait time.Duration, check func(context.Context) (waitsFor string, err error)) error {
	end, said := time.Now().Add(wait), ""
	return Poll(ctx, PollEvery, func() (bool, error) {
		waitsFor, err := check(ctx)
		switch {
		case err == nil && waitsFor == "":
			return true, nil
		case err != nil && !client.Retryable(err):
			return false, err
		case err != nil:
			waitsFor = err.Error()
		}
		if waitsFor != said {
			c.Say("%s", waitsFor)
			said = waitsFor
		}
		if time.Now().After(end) {
			return false, fmt.Errorf("after %v: %s: %w", wait, waitsFor, ErrNotYet)
		}
		return false, nil
	})
}

// WaitFlag adds --wait to a command that waits for the end of its order.
func WaitFlag(cmd *cobra.Command, wait *time.Duration) {
	DurationFlag(cmd.Flags(), wait, "wait", *wait, "how long to wait for the end")
}
