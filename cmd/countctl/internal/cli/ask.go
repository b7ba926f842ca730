package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
)

// ConfirmRisk is confirm for commands that must not run by accident: without a terminal
// --yes is needed.
func (c *CLI) ConfirmRisk(question string) error {
	if err := c.MayAsk(question); err != nil {
		return err
	}
	return c.Confirm(question)
}

// MayAsk refuses a question where there is neither a terminal nor --yes.
func (c *CLI) MayAsk(question string) error {
	if !c.Yes && (!IsTerminal(c.In) || !IsTerminal(c.Err)) {
		return Usagef("%s Give --yes", question)
	}
	return nil
}

// Ask prints a question and returns the answer. An interrupt ends it and the command; the
// goroutine that still reads then ends with the process.
func (c *CLI) Ask(question string) (string, error) {
	fmt.Fprint(c.Err, question)
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	go func() {
		line, err := bufio.NewReader(c.In).ReadString('\n')
		replies <- reply{line, err}
	}()
	select {
	case r := <-replies:
		return r.line, r.err
	case <-c.Interrupted:
		fmt.Fprintln(c.Err)
		return "", context.Canceled
	}
}

// Confirm asks on a terminal. Without one, or with --yes, it accepts.
func (c *CLI) Confirm(question string) error {
	if c.Yes || !IsTerminal(c.In) || !IsTerminal(c.Err) {
		return nil
	}
	answer, err := c.Ask(question + " [y/N] ")
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return fmt.Errorf("nothing was done; answer y, or give --yes")
	}
	return nil
}
