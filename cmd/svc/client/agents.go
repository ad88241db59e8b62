package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// agentView is an agent, or a workflow, as the API shows it.
type agentView struct {
	ID        string    `json:"id"`
	Slug      string    `json:"slug"`
	Name      string    `json:"name"`
	Published *int      `json:"published_version"`
	Latest    int       `json:"latest_version"`
	UpdatedAt time.Time `json:"updated_at"`
}

// published is the published version, or a dash for none.
func (a *agentView) published() string {
	if a.Published == nil {
		return "-"
	}
	return fmt.Sprint(*a.Published)
}

// agentRow prints an agent or a workflow as a row of a list.
func agentRow(w io.Writer, a *agentView) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", cli.Visible(a.Slug), cli.ShortID(a.ID), cli.Shorten(cli.Visible(a.Name), 40), a.published(), a.Latest, cli.Moment(&a.UpdatedAt))
}

func agentsCommand() *cobra.Command {
	cmd := cli.Group("agents", "list, read, make and publish agents")
	cmd.Long = idHelp
	cmd.AddCommand(agentsListCommand(), onOne(agentKind, "get", "one agent", show), agentsCreateCommand(),
		publishCommand(agentKind, "publish an agent's latest version, an older one, or a new one", "manifest", manifestHelp, readManifest))
	return cmd
}

func agentsListCommand() *cobra.Command {
	return listCommand(agentKind, "list agents, newest first", "agents", "AGENT\tID\tNAME\tPUBLISHED\tLATEST\tUPDATED", agentRow)
}

const manifestHelp = "the manifest, a JSON object: itself, @ and a file, or - for the input"

func readManifest(ctx context.Context, in io.Reader, text string) (document, error) {
	b, err := readArgs(ctx, in, text)
	return document{body: b}, err
}

func agentsCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create --name NAME --manifest JSON|@FILE|-",
		Short: "make an agent with a first version, published with --publish",
		Args:  cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "for people")
	slug := cmd.Flags().String("slug", "", "name for commands and other agents (default: made from --name)")
	description := cmd.Flags().String("description", "", "for people")
	manifest := cmd.Flags().String("manifest", "", manifestHelp)
	publish := cmd.Flags().Bool("publish", false, "publish the version")
	cli.Required(cmd, "name", "manifest")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		read, err := readArgs(cmd.Context(), cmd.InOrStdin(), *manifest)
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--manifest: %w", err))
		}
		body := map[string]any{"name": *name, "description": *description, "manifest": read}
		if *slug != "" {
			body["slug"] = *slug
		}
		return createVersioned(cmd, agentKind, body, *publish)
	})
	return cmd
}

// threadView is a thread as the API shows it.
type threadView struct {
	ID        string    `json:"id"`
	AgentID   string    `json:"agent_id"`
	Title     string    `json:"title"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

func threadsCommand() *cobra.Command {
	cmd := cli.Group("threads", "list and read conversations")
	cmd.Long = idHelp
	cmd.AddCommand(threadsListCommand(), threadsGetCommand())
	return cmd
}

func threadsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list threads, newest first", Args: cobra.NoArgs}
	most := limitFlag(cmd, 25)
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		items, next, err := listed(cmd, threadKind.path, url.Values{}, *most)
		if err != nil {
			return err
		}
		slugs, err := slugsOf(cmd, agentKind, len(items))
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "threads", "THREAD\tAGENT\tTITLE\tBY\tCREATED", func(w io.Writer, t *threadView) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cli.ShortID(t.ID), slugs.of(t.AgentID), cli.Dash(cli.Shorten(cli.Visible(t.Title), 60)), principal(t.CreatedBy), cli.Moment(&t.CreatedAt))
		})
	})
	return cmd
}

// principal returns an actor with a short id.
func principal(p string) string {
	if i := strings.LastIndexByte(p, ':'); i >= 0 {
		return cli.Visible(p[:i+1]) + cli.ShortID(p[i+1:])
	}
	return cli.Visible(p)
}

func threadsGetCommand() *cobra.Command {
	return onOne(threadKind, "get", "one thread with its messages, oldest first", func(cmd *cobra.Command, c *Client, path string) error {
		var thread json.RawMessage
		if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &thread); err != nil {
			return err
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := c.Call(cmd.Context(), http.MethodGet, path+"/messages", nil, &list); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(out, map[string]any{"thread": thread, "messages": list.Items})
		}
		var t threadView
		if err := json.Unmarshal(thread, &t); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s  %s  by %s, %s\n", t.ID, cli.Dash(cli.Visible(t.Title)), principal(t.CreatedBy), cli.Moment(&t.CreatedAt))
		if len(list.Items) == 0 {
			_, err := fmt.Fprintln(out, "no messages")
			return err
		}
		for _, item := range list.Items {
			var m struct{ Role, Content string }
			if err := json.Unmarshal(item, &m); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "%s: %s\n", cli.Visible(m.Role), cli.Harmless(m.Content)); err != nil {
				return err
			}
		}
		return nil
	})
}

// serverView is a tool server as the API shows it.
type serverView struct {
	ID        string `json:"id"`
	Slug      string `json:"slug"`
	Name      string `json:"name"`
	Transport string `json:"transport"`
	Endpoint  string `json:"endpoint"`
	AuthKind  string `json:"auth_kind"`
	Enabled   bool   `json:"enabled"`
}

func serversCommand() *cobra.Command {
	cmd := cli.Group("servers", "list, read and test tool servers")
	cmd.Long = idHelp
	cmd.AddCommand(serversListCommand(), onOne(serverKind, "get", "one tool server", show), serversTestCommand())
	return cmd
}

func serversListCommand() *cobra.Command {
	return listCommand(serverKind, "list tool servers, newest first", "tool servers", "SERVER\tID\tNAME\tENABLED\tAUTH\tENDPOINT", func(w io.Writer, s *serverView) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Visible(s.Slug), cli.ShortID(s.ID), cli.Shorten(cli.Visible(s.Name), 40), yesNo(s.Enabled), cli.Visible(s.AuthKind), cli.Dash(cli.Shorten(cli.Visible(s.Endpoint), 80)))
	})
}

func serversTestCommand() *cobra.Command {
	return onOne(serverKind, "test", "connect to a tool server now and list its tools", func(cmd *cobra.Command, c *Client, path string) error {
		type tested struct {
			Tools []struct{ Name, Description string }
		}
		err := callAndShow(cmd, c, http.MethodPost, path+"/test", map[string]any{}, func(w io.Writer, t *tested) error {
			if len(t.Tools) == 0 {
				_, err := fmt.Fprintln(w, "reached; it has no tools")
				return err
			}
			for _, one := range t.Tools {
				fmt.Fprintln(w, strings.TrimRight(cli.Visible(one.Name)+"  "+cli.Shorten(cli.Visible(one.Description), 100), " "))
			}
			return nil
		})
		var refused *APIError
		if errors.As(err, &refused) && len(refused.Errors) > 0 && refused.Detail == "" {
			var said []string
			for _, e := range refused.Errors {
				said = append(said, cli.Visible(fmt.Sprint(e)))
			}
			refused.Detail = strings.Join(said, "; ")
		}
		return err
	})
}

// policyView is an approval policy as the API shows it.
type policyView struct {
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	Pattern  string  `json:"tool_pattern"`
	AgentID  *string `json:"agent_id"`
	Risk     string  `json:"risk"`
	Required int     `json:"required_approvals"`
	Role     string  `json:"approver_role"`
	SLA      float64 `json:"sla_minutes"`
}

func policiesCommand() *cobra.Command {
	cmd := cli.Group("policies", "list and read approval policies: which calls wait for a person")
	cmd.Long = idHelp
	ls := &cobra.Command{Use: "ls", Short: "list approval policies, newest first", Args: cobra.NoArgs}
	most := limitFlag(ls, 100)
	ls.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		items, next, err := listed(cmd, policyKind.path, url.Values{}, *most)
		if err != nil {
			return err
		}
		slugs, err := slugsOf(cmd, agentKind, len(items))
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "policies", "POLICY\tNAME\tTOOL\tAGENT\tRISK\tAPPROVALS\tWITHIN", func(w io.Writer, p *policyView) {
			agent := "any"
			if p.AgentID != nil {
				agent = slugs.of(*p.AgentID)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d by %s\t%g min\n", cli.ShortID(p.ID), cli.Shorten(cli.Visible(p.Name), 40), cli.Visible(p.Pattern), agent, cli.Visible(p.Risk), p.Required, cli.Visible(p.Role), p.SLA)
		})
	})
	cmd.AddCommand(ls, onOne(policyKind, "get", "one approval policy", show))
	return cmd
}
