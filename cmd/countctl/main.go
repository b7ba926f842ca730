// Command countctl operates a countd server through its HTTP API.
//
// It owns the command line, its output and the exit codes, which scripts may rely on: 0 for
// success, 1 for failure, 2 for wrong usage. It uses the public API only, and never repeats
// an increment in a way that could count twice.
package main

import (
	"github.com/countd/countd/cmd/countctl/internal/access"
	"github.com/countd/countd/cmd/countctl/internal/backup"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/cluster"
	"github.com/countd/countd/cmd/countctl/internal/counters"
	"github.com/countd/countd/cmd/countctl/internal/load"
	"github.com/countd/countd/cmd/countctl/internal/social"
	"github.com/countd/countd/cmd/countctl/internal/sources"
	"github.com/countd/countd/cmd/countctl/internal/transfer"
)

func main() { cli.Main(groups...) }

// groups are the commands of all packages.
var groups = []cli.Commands{
	counters.Commands, transfer.Commands, load.Commands, social.Commands,
	cluster.Commands, backup.Commands, sources.Commands, access.Commands,
}
