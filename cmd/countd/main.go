// Command countd is one node of the counter database. This package owns the node's settings,
// the order in which its parts start and stop, and the exit code. It never inspects a
// request or a row.
//
// Invariant: the process that writes a data directory acquires the directory's lock before it opens
// the first group, and releases it after the last group has closed.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/source/redisstream"
)

// The exit codes of countd.
const (
	exitOK     = 0
	exitFailed = 1 // the node could not start, or failed later
	exitUsage  = 2 // an invalid flag, variable, file or command
)

func main() {
	redisstream.Quiet() // otherwise the Redis client would also print the errors that countd logs
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	c := newConfig()
	root := rootCommand(c)
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	code := exitFailed
	if bad := new(configError); errors.As(err, &bad) {
		code = exitUsage
	}
	switch {
	case c.LogFormat == "json": // each line must be JSON, including the error
		c.logger().Error("countd cannot run", "err", err, "exit_code", code)
	case code == exitUsage:
		fmt.Fprintf(os.Stderr, "countd: %v\nRun 'countd --help' for the settings.\n", err)
	default:
		fmt.Fprintf(os.Stderr, "countd: %v\n", err)
	}
	return code
}

func rootCommand(c *config) *cobra.Command {
	root := &cobra.Command{
		Use:   "countd",
		Short: "A replicated database of exact counters",
		Long: "countd runs one node of the counter database until SIGTERM or SIGINT.\n\n" +
			"Each setting is a flag, an environment variable (COUNTD_DATA_DIR for --data-dir)\n" +
			"and a key of the YAML file (data-dir). Flags override variables, variables the file,\n" +
			"and the file the defaults.",
		Example: "  countd                                  # a node on loopback, with its data in ./countd-data\n" +
			"  countd --config /etc/countd/countd.yaml\n" +
			"  countctl incr 1 like=1                  # in another terminal\n" +
			"  countctl get 1",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := c.resolve(os.LookupEnv); err != nil {
				return err
			}
			return serve(c)
		},
	}
	root.PersistentFlags().AddFlagSet(c.flags)
	root.PersistentFlags().StringVar(&c.file, configFlag, "", "YAML file of settings")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &configError{err.Error()} })
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(configCommand(c), versionCommand())
	return root
}

func configCommand(c *config) *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration as YAML, with each value's source, and check the files that it names",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.resolve(os.LookupEnv); err != nil {
				return err
			}
			for _, name := range c.strayEnv(os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "countd: ignored %s: not a setting\n", name)
			}
			if err := c.printEffective(cmd.OutOrStdout()); err != nil {
				return err
			}
			return c.checkFiles()
		},
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("countd %s %s %s/%s", program.VersionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &configError{fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())}
	}
	return nil
}
