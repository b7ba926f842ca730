// Command countctl operates a countd server through its HTTP API.
//
// It owns the command line, its output and the exit codes: 0 for success, 1 for failure, 2 for
// wrong usage. Scripts may rely on these. It uses the public API only, and never repeats an
// increment in a way that could count twice.
package main

import (
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/cluster"
	"github.com/countd/countd/cmd/countctl/internal/data"
	"github.com/countd/countd/cmd/countctl/internal/load"
)

func main() { cli.Main(groups...) }

var groups = []cli.Commands{data.Commands, load.Commands, cluster.Commands}
