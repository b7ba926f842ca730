package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/pki"
)

const (
	caExpiresDefault   = 10 * 365 * 24 * time.Hour
	leafExpiresDefault = 365 * 24 * time.Hour
	caName             = "ca"
)

type certOutput struct {
	Cert    string    `json:"cert"`
	Key     string    `json:"key"`
	Expires time.Time `json:"expires"`
}

func certCommand(c *cli.CLI) *cobra.Command {
	cmd := cli.CommandGroup("cert", "Make certificates for nodes and clients; needs no server", certCACommand(c), certLeafCommand(c, true), certLeafCommand(c, false))
	cmd.Long = `Make certificates for nodes and clients; needs no server.

create-ca makes an authority, ca.crt and ca.key. node and client make NAME.crt and NAME.key,
which the authority signs. Keys are ECDSA P-256, and readable by their owner alone. No file is
overwritten. Nodes need ca.crt; keep ca.key away from them.`
	return cmd
}

func certCACommand(c *cli.CLI) *cobra.Command {
	var dir, name string
	expires := caExpiresDefault
	cmd := &cobra.Command{
		Use:   "create-ca",
		Short: "Make a certificate authority",
		RunE: func(*cobra.Command, []string) error {
			end, err := expiry(expires)
			if err != nil {
				return err
			}
			pair, err := pki.NewCA(name, end)
			if err != nil {
				return err
			}
			return writePair(c, dir, caName, pair)
		},
	}
	certFlags(cmd, &dir, &expires)
	cmd.Flags().StringVar(&name, "name", "countd CA", "name of the authority")
	return cmd
}

func certLeafCommand(c *cli.CLI, node bool) *cobra.Command {
	var dir string
	var hosts []string
	expires := leafExpiresDefault
	cmd := &cobra.Command{
		Use:   "client NAME",
		Short: "Make a client's certificate",
	}
	if node {
		cmd.Use = "node NAME [HOST…]"
		cmd.Short = "Make a node's certificate, for its clients and the other nodes"
		cmd.Long = `Make a node's certificate, for its clients and the other nodes.

NAME is the node's --node-id. HOSTs are the names and IP addresses at which clients reach
the node; localhost, 127.0.0.1 and ::1 are always among them.`
	}
	certFlags(cmd, &dir, &expires)
	if node {
		cmd.Flags().StringSliceVar(&hosts, "hosts", nil, "further HOSTs, separated by commas")
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name := args[0]
		if name == caName || name == "" || strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
			return cli.Usagef("%q cannot be the name of a certificate and its files", name)
		}
		end, err := expiry(expires)
		if err != nil {
			return err
		}
		ca, err := readPair(dir, caName)
		if err != nil {
			return fmt.Errorf("%w; countctl cert create-ca makes an authority", err)
		}
		leaf := pki.Leaf{Name: name, Node: node, NotAfter: end}
		if node {
			leaf.Hosts = append(append(hosts, args[1:]...), "localhost", "127.0.0.1", "::1")
		}
		pair, err := pki.Issue(ca, leaf)
		if err != nil {
			return err
		}
		if err = writePair(c, dir, name, pair); errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w; move it away to renew", err)
		}
		return err
	}
	return cmd
}

func certFlags(cmd *cobra.Command, dir *string, expires *time.Duration) {
	cmd.Flags().StringVar(dir, "dir", ".", "directory of ca.crt, ca.key and the files that are made")
	cli.DurationFlag(cmd.Flags(), expires, "expires", *expires, "how long the certificate is valid; not beyond its authority")
}

func expiry(after time.Duration) (time.Time, error) {
	if after <= 0 {
		return time.Time{}, cli.Usagef("--expires must be above 0, not %v", after)
	}
	return time.Now().Add(after), nil
}

func readPair(dir, name string) (pki.Pair, error) {
	var p pki.Pair
	var err error
	if p.Cert, err = os.ReadFile(filepath.Join(dir, name+".crt")); err == nil {
		p.Key, err = os.ReadFile(filepath.Join(dir, name+".key"))
	}
	return p, err
}

// writePair writes NAME.crt and NAME.key, or neither.
func writePair(c *cli.CLI, dir, name string, pair pki.Pair) error {
	out := certOutput{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"), Expires: pair.NotAfter.UTC().Truncate(time.Second)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot create %s: %w", dir, err)
	}
	if err := writeNew(out.Key, pair.Key, 0o600); err != nil {
		return err
	}
	if err := writeNew(out.Cert, pair.Cert, 0o644); err != nil {
		_ = os.Remove(out.Key) // remove the key, because it is useless without the certificate
		return err
	}
	return c.Print(out, func(t *cli.Table) {
		t.Row("CERTIFICATE", "KEY", "EXPIRES")
		t.Row(out.Cert, out.Key, out.Expires.Format(time.RFC3339))
	})
}

// writeNew creates and writes a file. It returns an error if the file exists.
func writeNew(path string, content []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("cannot write a new file: %w", err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(path) // remove the incomplete file
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}
