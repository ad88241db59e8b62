package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cluster/membership"
	"agentsvc/cluster/placement"
	"agentsvc/cmd/svc/cli"
	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
)

// These commands work on the database, like those of manage.go, so that they also list and
// drain a node that cannot be reached.

func clusterCommand() *cobra.Command {
	cmd := cli.Group("cluster", "list and drain the nodes of the cluster")
	status := &cobra.Command{Use: "status", Short: "list the nodes, their leases and their shards", Args: cobra.NoArgs, RunE: cli.Does(func(cmd *cobra.Command, _ []string) error {
		return onMembers(cmd, func(_ context.Context, _ *pg.Pool, all []membership.Listed) error {
			nodes := describeNodes(all)
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"items": nodes})
			}
			return printNodes(cmd.OutOrStdout(), nodes)
		})
	})}
	drain := &cobra.Command{
		Use:   "drain NODE",
		Short: "move a node's work to the others; it stays up, and its /readyz answers 503",
		Long: "Moves a node's work to the others. The node stays up and answers what still reaches it, and its /readyz answers 503, until\n" +
			"it is stopped or until --undo. NODE is its address, its id, or at least the last 8 hex digits of its id.",
		Args: cobra.ExactArgs(1),
	}
	undo := drain.Flags().Bool("undo", false, "undo the drain")
	drain.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		return onMembers(cmd, func(ctx context.Context, pool *pg.Pool, all []membership.Listed) error {
			node, err := pickNode(all, args[0])
			if err != nil {
				return err
			}
			if err := membership.Drain(ctx, pool, node.ID, !*undo); err != nil {
				return err
			}
			state := stateDraining
			if *undo {
				state = stateServing
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"id": node.ID.String(), "state": state})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) is %s\n", shownAddress(node.Address), node.ID, state)
			return err
		})
	})
	cmd.AddCommand(status, drain)
	return cmd
}

func onMembers(cmd *cobra.Command, work func(ctx context.Context, pool *pg.Pool, all []membership.Listed) error) error {
	return onDatabase(cmd, managing, func(ctx context.Context, _ *Config, pool *pg.Pool) error {
		all, err := membership.List(ctx, pool)
		if err != nil {
			return err
		}
		return work(ctx, pool, all)
	})
}

// States of a node as an operator sees them.
const (
	stateServing  = "serving"
	stateDraining = "draining"
	stateSilent   = "silent" // its lease expired, and no node has marked it dead yet
	stateDead     = "dead"
)

// nodeInfo is one row of svc cluster status.
type nodeInfo struct {
	ID        id.MemberID `json:"id"`
	Address   string      `json:"address"`
	Version   string      `json:"version"`
	State     string      `json:"state"`
	Shards    int         `json:"shards"`
	LeaseLeft float64     `json:"lease_left_seconds"`
	StartedAt time.Time   `json:"started_at"`
	DeadAt    *time.Time  `json:"dead_at,omitempty"`
}

func describeNodes(all []membership.Listed) []nodeInfo {
	nodes := make([]nodeInfo, len(all))
	var living []membership.Member
	for i, l := range all {
		n := nodeInfo{ID: l.ID, Address: l.Address, Version: l.Version, State: stateServing, LeaseLeft: l.LeaseLeft.Seconds(), StartedAt: l.StartedAt.UTC()}
		switch {
		case !l.DeadAt.IsZero():
			at := l.DeadAt.UTC()
			n.State, n.DeadAt, n.LeaseLeft = stateDead, &at, 0
		case l.LeaseLeft <= 0:
			n.State = stateSilent
		case l.Draining:
			n.State = stateDraining
		}
		if n.State != stateDead {
			living = append(living, membership.Member{ID: l.ID, Draining: l.Draining})
		}
		nodes[i] = n
	}
	table, err := placement.New(membership.Owners(living))
	if err != nil {
		return nodes // no node is alive
	}
	for i := range nodes {
		nodes[i].Shards = len(table.Shards(nodes[i].ID))
	}
	return nodes
}

func printNodes(out io.Writer, nodes []nodeInfo) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tADDRESS\tSTATE\tSHARDS\tLEASE\tVERSION\tSTARTED")
	for _, n := range nodes {
		lease := fmt.Sprintf("%.1fs", n.LeaseLeft)
		if n.State == stateDead {
			lease = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", cli.ShortID(n.ID.String()), shownAddress(n.Address), n.State, n.Shards, lease, n.Version, n.StartedAt.Format(time.RFC3339))
	}
	return w.Flush()
}

// shownAddress returns a node's address for people. A single node has none.
func shownAddress(a string) string {
	if a == "" {
		return "(one node)"
	}
	return a
}

// pickNode returns the one live node that name identifies: by its address, its id, or the
// end of its id.
func pickNode(all []membership.Listed, name string) (*membership.Listed, error) {
	var living []cli.Named
	byID := map[string]*membership.Listed{}
	for i := range all {
		l := &all[i]
		if !l.DeadAt.IsZero() {
			continue
		}
		if l.Address == name && name != "" {
			return l, nil
		}
		living = append(living, cli.Named{ID: l.ID.String(), Label: shownAddress(l.Address)})
		byID[l.ID.String()] = l
	}
	found, err := cli.Pick("node", name, false, living)
	if err != nil {
		return nil, cli.WrongUse(err)
	}
	return byID[found], nil
}
