package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// OnceText is the last paragraph of the help text of each command that writes.
const OnceText = `

The request is sent once, with a key under which it counts only once, however often it
is sent. If its outcome stays unknown, the error names the key: run the same command
again with that --key.`

// FloorFlag is the value of the flag --floor. Value is nil if the flag is absent.
type FloorFlag struct{ Value *int64 }

// Add adds --floor to a command.
func (f *FloorFlag) Add(cmd *cobra.Command) {
	cmd.Flags().Var(f, "floor", "bound below which no sum drops; a count that is already below it is unchanged")
}

func (f *FloorFlag) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("not a signed 64-bit integer")
	}
	f.Value = &n
	return nil
}

func (f *FloorFlag) Type() string { return "N" }

func (f *FloorFlag) String() string {
	if f.Value == nil {
		return ""
	}
	return strconv.FormatInt(*f.Value, 10)
}

// KeyFlag adds --key to a command.
func KeyFlag(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "key", "", "Idempotency-Key of the write, 1 to 128 bytes; to repeat a write that may have happened, give its key (default: a new key)")
}

// WriteKey returns the value of --key or, if the flag is absent, a new key.
func WriteKey(cmd *cobra.Command, key string, bytesMax int) (string, error) {
	if !cmd.Flags().Changed("key") {
		return client.NewKey()
	}
	if len(key) < 1 || len(key) > bytesMax {
		return "", Usagef("--key is 1 to %d bytes here, not %d", bytesMax, len(key))
	}
	return key, nil
}

// unknownError is the error of a write that may have happened.
type unknownError struct {
	effect string // a clause, such as "the ops were applied"
	key    string // key with which to repeat the write
	err    error
}

// Unknown returns the error of a write that may have happened. effect is a clause that describes
// the write, such as "the ops were applied". key is the key with which to repeat the write.
func Unknown(effect, key string, err error) error { return &unknownError{effect, key, err} }

func (e *unknownError) Error() string {
	why := strings.TrimPrefix(e.err.Error(), client.ErrUnknown.Error()+": ") // the message below states this already
	return fmt.Sprintf("it is unknown whether %s: %s; run it again with --key %s, so that it counts once", e.effect, why, e.key)
}

func (e *unknownError) Unwrap() error { return e.err }

// WithKeyRemedy adds a remedy to an error in which the server refused the key of a write. It
// returns any other error unchanged.
func WithKeyRemedy(err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "idempotency_conflict":
		return fmt.Errorf("%w; repeat the original write, or leave the key out", err)
	case "idempotency_expired":
		return fmt.Errorf("%w; read the row to see whether it happened, and leave the key out to write again", err)
	}
	return err
}
