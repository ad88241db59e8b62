package client

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/tool"
)

func grantsCommand() *cobra.Command {
	cmd := cli.Group("grants", "explain why an agent may or may not call a tool")
	cmd.AddCommand(grantsExplainCommand())
	return cmd
}

func grantsExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain AGENT TOOL",
		Short: "show which grant or policy decides about a tool, for an agent by its slug or id",
		Args:  cobra.ExactArgs(2), ValidArgsFunction: completes(agentKind, 1),
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			agent, err := c.findAgent(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := c.Call(cmd.Context(), "GET", "/v1/agents/"+url.PathEscape(agent)+"/tools/explain?"+url.Values{"tool": {args[1]}}.Encode(), nil, &raw); err != nil {
				return err
			}
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), raw)
			}
			var e tool.Explanation
			if err := json.Unmarshal(raw, &e); err != nil {
				return err
			}
			return printExplanation(cmd, &e)
		}),
	}
}

// verdicts are the verdicts in words.
var verdicts = map[tool.Verdict]string{
	tool.Callable: "may be called",
	tool.Gated:    "may be called once it is approved",
	tool.Refused:  "may not be called",
}

func printExplanation(cmd *cobra.Command, e *tool.Explanation) error {
	out := cmd.OutOrStdout()
	words, known := verdicts[e.Verdict]
	if !known {
		words = cli.Visible(string(e.Verdict))
	}
	fmt.Fprintf(out, "%s %s: %s.\n", cli.Visible(e.Tool), words, strings.TrimSuffix(cli.Visible(e.Why), "."))
	if e.GrantID != nil {
		fmt.Fprintf(out, "grant       %s\n", e.GrantID)
	}
	if e.Connection != nil {
		fmt.Fprintf(out, "connection  %s\n", e.Connection)
	}
	if t := e.Approval; t != nil {
		fmt.Fprintf(out, "approval    %s\n", termsOf(t))
	}
	if len(e.Steps) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tID\tPATTERN\tMATCHED\tDECIDED\tNOTE")
	for _, s := range e.Steps {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Visible(s.What), cli.Dash(cli.Visible(s.ID)), cli.Dash(cli.Visible(s.Pattern)), yesNo(s.Matched), yesNo(s.Decided), cli.Visible(s.Note))
	}
	return w.Flush()
}

// termsOf returns what an approval requires.
func termsOf(t *tool.Terms) string {
	s := fmt.Sprintf("%s risk, %d by %s within %g minutes", t.Risk, t.Required, t.Role, t.SLAMinutes)
	if t.Escalate != "" {
		s += fmt.Sprintf(", escalated to %s", t.Escalate)
	}
	return s + fmt.Sprintf(", on timeout %s; asked for by the %s %s", t.OnTimeout, t.Policy.Kind, cli.Visible(t.Policy.Name))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
