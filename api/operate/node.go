package operate

import (
	"context"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/shard"
)

// Root answers with links to the API, for a person with a browser or curl.
func Root(_ context.Context, c *Call, _ *Nothing) (any, error) {
	type links struct {
		Console   string `json:"console"`
		OpenAPI   string `json:"openapi"`
		Keyspaces string `json:"keyspaces"`
		Cluster   string `json:"cluster"`
		Health    string `json:"health"`
		Ready     string `json:"ready"`
		Metrics   string `json:"metrics"`
	}
	return struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Links   links  `json:"links"`
	}{"countd", c.Version, links{Console: "/ui/", OpenAPI: "/openapi.yaml", Keyspaces: "/v1/keyspaces", Cluster: "/v1/cluster", Health: "/healthz", Ready: "/readyz", Metrics: "/metrics"}}, nil
}

// WhoAmI answers with the rights of the caller.
func WhoAmI(_ context.Context, c *Call, _ *Nothing) (any, error) {
	who := struct {
		Auth auth.Mode `json:"auth"`
		User string    `json:"user"`
		May  []string  `json:"may"`
	}{auth.Off, "", []string{}}
	if c.Auth != nil {
		who.Auth = c.Auth.Mode()
	}
	if c.Caller != nil {
		who.User = c.Caller.Name
	}
	if c.Caller != nil || who.Auth != auth.Enforce {
		who.May = c.Caller.Accesses()
	}
	return who, nil
}

// ProgramVersion answers the version of the node's program.
func ProgramVersion(_ context.Context, c *Call, _ *Nothing) (any, error) {
	return map[string]any{"version": c.Version}, nil
}

// ClusterStatus answers the nodes and groups of the cluster, as this node knows them.
func ClusterStatus(_ context.Context, c *Call, _ *Nothing) (shard.Status, error) {
	status := c.Node.Status()
	status.Nodes = append([]shard.NodeStatus{}, status.Nodes...)
	status.Groups = append([]shard.GroupStatus{}, status.Groups...)
	return status, nil
}
