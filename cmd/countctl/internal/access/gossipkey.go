package access

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// errGossipKeys is returned for a change that some nodes did not make.
var errGossipKeys = errors.New("not every node made the change; run the command again once they answer")

func gossipKeyCommand(c *cli.CLI) *cobra.Command {
	cmd := cli.CommandGroup("gossip-key", "Change the keys that encrypt gossip, on every node, without a restart",
		gossipKeyVerb(c, "add KEY", "Decrypt gossip with a further key"),
		gossipKeyVerb(c, "use KEY|ID", "Encrypt gossip with a key that every node has"),
		gossipKeyVerb(c, "remove KEY|ID", "Forget a key that no node encrypts with"),
		c.ListCommand("gossip keys", listGossipKeys))
	cmd.Long = `Change the keys that encrypt gossip, on every node, without a restart.

add makes every node decrypt with a new key too, use makes them encrypt with it, and remove
makes them forget the former one. A KEY is 16, 24 or 32 bytes in base64, such as
'openssl rand -base64 32' prints, or - to read it from standard input; use and remove take
the ID that list prints as well. Every command may be repeated.`
	return cmd
}

func listGossipKeys(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
	keys, err := server.Admin().GossipKeys(ctx)
	return keys, func(t *cli.Table) { gossipKeyRows(t, keys) }, err
}

func gossipKeyVerb(c *cli.CLI, use, short string) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cli.Exactly(1, "a KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			if key == "-" {
				line, err := bufio.NewReader(c.In).ReadString('\n')
				if err != nil && !errors.Is(err, io.EOF) {
					return fmt.Errorf("cannot read the key: %w", err)
				}
				key = strings.TrimSpace(line)
			}
			return c.WithServer(func(server *client.Client) error {
				keys, err := server.Admin().ChangeGossipKey(cmd.Context(), verb, key)
				if err != nil {
					return fmt.Errorf("cannot %s the gossip key: %w", verb, err)
				}
				if err := c.Print(keys, func(t *cli.Table) { gossipKeyRows(t, keys) }); err != nil {
					return err
				}
				if !keys.Complete {
					return errGossipKeys
				}
				return nil
			})
		},
	}
}

func gossipKeyRows(t *cli.Table, keys client.GossipKeys) {
	t.Row("NODE", "KEY", "ENCRYPTS", "PROBLEM")
	for _, n := range keys.Nodes {
		problem := n.Refused
		switch {
		case !n.Answers:
			problem = "does not answer"
		case len(n.Keys) == 0:
			problem = "its gossip is not encrypted"
		}
		if len(n.Keys) == 0 {
			t.Row(n.Node, "-", "-", problem)
		}
		for _, k := range n.Keys {
			t.Row(n.Node, k.ID, map[bool]string{true: "yes", false: "no"}[k.Primary], problem)
		}
	}
}
