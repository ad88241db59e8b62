package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// FoundView is an object that a search found, as commands show it.
type FoundView struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func findCommand() *cobra.Command {
	return &cobra.Command{Use: "search TEXT", Short: "find objects by an id, the end of one, a name, slug, title, external id or e-mail", Args: cobra.ExactArgs(1),
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			items, err := itemsAt(cmd, "/v1/search?q="+url.QueryEscape(args[0]))
			if err != nil {
				return err
			}
			return cli.PrintList(cmd, items, nil, len(items), "objects", "KIND\tID\tTITLE\tDETAIL", func(w io.Writer, f *FoundView) {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cli.Visible(f.Kind), cli.ShortID(f.ID), cli.Visible(f.Title), cli.Visible(f.Detail))
			})
		})}
}

// itemsAt reads a list that has no pages.
func itemsAt(cmd *cobra.Command, path string) ([]json.RawMessage, error) {
	c, err := newClient()
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	return list.Items, c.Call(cmd.Context(), http.MethodGet, path, nil, &list)
}

// ToolView is a tool of the tenant as commands show it.
type ToolView struct {
	Tool     string            `json:"tool"`
	Source   string            `json:"source"`
	ListedAt *time.Time        `json:"listed_at"`
	Access   map[string]string `json:"access"`
}

func toolsCommand() *cobra.Command {
	cmd := cli.Group("tools", "list the tenant's tools")
	cmd.Long = idHelp
	ls := &cobra.Command{Use: "ls", Short: "list the tools of all servers and skills, and what happens when an agent calls them", Args: cobra.NoArgs}
	agent := filledFlag(ls, "agent", "", "say whether this agent may call each, by its slug or id")
	if err := ls.RegisterFlagCompletionFunc("agent", completes(agentKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	most := limitFlag(ls, 100)
	ls.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		q, of := url.Values{}, ""
		if *agent != "" {
			c, err := newClient()
			if err != nil {
				return err
			}
			if of, err = c.findAgent(cmd.Context(), *agent); err != nil {
				return err
			}
			q.Set("agent_id", of)
		}
		items, next, err := listed(cmd, "/v1/tools", q, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "tools", "TOOL\tSOURCE\tACCESS", func(w io.Writer, t *ToolView) {
			access := "-"
			if of != "" {
				access = cli.Visible(t.Access[of])
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", cli.Visible(t.Tool), cli.Visible(t.Source), access)
		})
	})
	cmd.AddCommand(ls)
	return cmd
}

// DeniedView is an origin that an embed key refused, as commands show it.
type DeniedView struct {
	Origin string    `json:"origin"`
	Count  int64     `json:"count"`
	LastAt time.Time `json:"last_at"`
}

func deniedOriginsCommand() *cobra.Command {
	return onOne(embedKeyKind, "denied-origins", "the origins that an embed key refused in the last 30 days", func(cmd *cobra.Command, _ *Client, path string) error {
		items, err := itemsAt(cmd, path+"/denied-origins")
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, nil, len(items), "denied origins", "ORIGIN\tCALLS\tLAST", func(w io.Writer, d *DeniedView) {
			fmt.Fprintf(w, "%s\t%d\t%s\n", cli.Visible(d.Origin), d.Count, d.LastAt.UTC().Format(time.RFC3339))
		})
	})
}
