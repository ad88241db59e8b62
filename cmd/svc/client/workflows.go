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

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/flow"
)

func workflowsCommand() *cobra.Command {
	cmd := cli.Group("workflows", "check, make, publish, draw and run workflows")
	cmd.Long = idHelp
	cmd.AddCommand(workflowsListCommand(), onOne(workflowKind, "get", "one workflow with its versions", show), workflowsCreateCommand(),
		publishCommand(workflowKind, "publish a workflow's latest version, an older one, or a new one", "definition", definitionHelp, readDefinition),
		workflowsValidateCommand(), workflowsDiagramCommand(),
		workflowsStartCommand("run", "runs", "start a run of a workflow's published version and print the run's id"),
		workflowsStartCommand("test", "test-run", "start a run of a workflow's newest version, published or not, without webhooks about its end"),
		workflowsRunsCommand(), workflowsEventCommand())
	return cmd
}

func workflowsListCommand() *cobra.Command {
	return listCommand(workflowKind, "list workflows, newest first", "workflows", "WORKFLOW\tID\tNAME\tPUBLISHED\tLATEST\tUPDATED", agentRow)
}

const definitionHelp = "the definition in JSON or YAML: itself, @ and a file, or - for the input"

// readDefinition reads a definition; an error names line and column.
func readDefinition(ctx context.Context, in io.Reader, text string) (document, error) {
	b, err := readText(ctx, in, text)
	if err != nil {
		return document{}, err
	}
	name := "the definition"
	if file, is := strings.CutPrefix(text, "@"); is {
		name = file
	} else if text == "-" {
		name = "the input"
	}
	d, err := readSource(name, b)
	if err != nil {
		return document{}, err
	}
	return document{body: d.JSON, explain: func(refused error) error {
		// The service decides. If this build finds faults too, they have places.
		var p *APIError
		if errors.As(refused, &p) && p.Code == "VALIDATION" {
			if checked, err := d.check(ctx); err == nil && len(checked.faults) > 0 {
				return cli.WrongUse(checked.fault())
			}
		}
		return refused
	}}, nil
}

func workflowsCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create --name NAME --definition JSON|YAML|@FILE|-",
		Short: "make a workflow with a first version, published with --publish",
		Args:  cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "for people")
	slug := cmd.Flags().String("slug", "", "name for commands (default: made from --name)")
	definition := cmd.Flags().String("definition", "", definitionHelp)
	publish := cmd.Flags().Bool("publish", false, "publish the version")
	cli.Required(cmd, "name", "definition")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		read, err := readDefinition(cmd.Context(), cmd.InOrStdin(), *definition)
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--definition: %w", err))
		}
		body := map[string]any{"name": *name, "definition": read.body}
		if *slug != "" {
			body["slug"] = *slug
		}
		return read.explained(createVersioned(cmd, workflowKind, body, *publish))
	})
	return cmd
}

func workflowsValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "check a definition in JSON or YAML without the service; faults have line and column",
		Long: "FILE may be - for the input. Needs neither a service nor a key, so it does not know whether an agent or a tool exists: publish warns about them.\n" +
			"The exit code is 0 for a valid definition, also with warnings, and 2 for one with faults.",
		Args: cobra.ExactArgs(1),
		RunE: cli.Does(func(cmd *cobra.Command, args []string) error {
			checked, err := checkFile(cmd, args[0])
			if err != nil {
				return cli.WrongUse(err)
			}
			if len(checked.faults) > 0 {
				return cli.WrongUse(checked.fault())
			}
			d, err := flow.Load(checked.JSON)
			if err != nil {
				return cli.WrongUse(err)
			}
			nodes, edges := len(d.Definition().Nodes), len(d.Definition().Edges)
			if cli.WantsJSON(cmd) {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"valid": true, "nodes": nodes, "edges": edges, "warnings": checked.warnings})
			}
			for _, w := range checked.warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), w.line(checked.name, "warning: "))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s, %s\n", cli.Visible(checked.name), counted(nodes, "node"), counted(edges, "edge"))
			return err
		}),
	}
}

func workflowsDiagramCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diagram FILE|ID",
		Short: "print a workflow as a Mermaid flowchart: a definition in a file, or a version in the service",
		Long: "FILE may be - for the input; it needs neither a service nor a key. Of an ID it draws the published version, or the newest if none is published.\n" +
			"Agents are boxes, tools have double sides, conditions are rhombs, gates hexagons, human tasks trapezoids, variables slanted, events and delays round.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completes(workflowKind, 1),
	}
	version := cmd.Flags().Int("version", 0, "this version; the published one without it")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		var d *flow.Definition
		var err error
		if namesFile(args[0]) {
			if cmd.Flags().Changed("version") {
				return cli.WrongUse(errors.New("--version: belongs to a workflow in the service, not to a file"))
			}
			d, err = definitionOfFile(cmd, args[0])
		} else {
			d, err = definitionOf(cmd, args[0], *version)
		}
		if err != nil {
			return err
		}
		drawn := flow.Mermaid(d)
		if cli.WantsJSON(cmd) {
			return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"mermaid": drawn})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), cli.Harmless(drawn))
		return err
	})
	return cmd
}

func definitionOfFile(cmd *cobra.Command, name string) (*flow.Definition, error) {
	checked, err := checkFile(cmd, name)
	if err == nil && len(checked.faults) > 0 {
		err = checked.fault()
	}
	if err != nil {
		return nil, cli.WrongUse(err)
	}
	return loaded(checked.JSON)
}

func loaded(definition json.RawMessage) (*flow.Definition, error) {
	p, err := flow.Load(definition)
	if err != nil {
		return nil, err
	}
	return p.Definition(), nil
}

// definitionOf reads a version of a workflow from the service: with 0 the published one, or
// else the newest.
func definitionOf(cmd *cobra.Command, text string, version int) (*flow.Definition, error) {
	c, err := newClient()
	if err != nil {
		return nil, err
	}
	id, err := c.find(cmd.Context(), workflowKind, text)
	if err != nil {
		return nil, err
	}
	path := workflowKind.at(id)
	if version == 0 {
		var got versionAnswer
		if err := c.Call(cmd.Context(), http.MethodGet, path+"?limit=1", nil, &got); err != nil {
			return nil, err
		}
		of := got.of()
		if version = of.Latest; of.Published != nil {
			version = *of.Published
		}
		if version == 0 {
			return nil, &cli.LookupError{Code: "NOT_FOUND", Text: fmt.Sprintf("the workflow %s has no version", cli.Visible(of.Slug))}
		}
	}
	var got struct {
		Definition json.RawMessage `json:"definition"`
	}
	if err := c.Call(cmd.Context(), http.MethodGet, fmt.Sprintf("%s/versions/%d", path, version), nil, &got); err != nil {
		return nil, err
	}
	return loaded(got.Definition)
}

// workflowsStartCommand returns the command that starts a run by the last part of its route.
func workflowsStartCommand(use, route, short string) *cobra.Command {
	var input *string
	var variables *[]string
	var follow *bool
	cmd := onOne(workflowKind, use, short, func(cmd *cobra.Command, c *Client, path string) error {
		body := map[string]any{}
		if *input != "" {
			read, err := readJSON(cmd.Context(), cmd.InOrStdin(), *input)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--input: %w", err))
			}
			body["input"] = read
		}
		if len(*variables) > 0 {
			set, err := readVariables(*variables)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--variable: %w", err))
			}
			body["variables"] = set
		}
		return start(cmd, c, path+"/"+route, body, *follow)
	})
	cmd.Long = "The id goes to the output. With --watch the nodes are shown as they start and end."
	input = cmd.Flags().String("input", "", "the input as JSON: itself, @ and a file, or - for the input")
	variables = cmd.Flags().StringArray("variable", nil, "a variable as NAME=VALUE, over that of the definition; VALUE is JSON, or else a text; may be repeated")
	follow = cmd.Flags().Bool("watch", false, "follow the run to its end")
	return cmd
}

// readVariables reads texts of the form NAME=VALUE. A value that is no JSON is a text.
func readVariables(texts []string) (map[string]any, error) {
	set := map[string]any{}
	for _, text := range texts {
		name, value, is := strings.Cut(text, "=")
		switch _, twice := set[name]; {
		case !is || name == "":
			return nil, fmt.Errorf("%q must have the form NAME=VALUE", cli.Visible(text))
		case twice:
			return nil, fmt.Errorf("%q is given twice", cli.Visible(name))
		}
		set[name] = value
		if json.Valid([]byte(value)) {
			set[name] = json.RawMessage(value)
		}
	}
	return set, nil
}

func workflowsRunsCommand() *cobra.Command {
	var status *string
	var most *int
	cmd := onOne(workflowKind, "runs", "list the runs of a workflow, newest first", func(cmd *cobra.Command, c *Client, path string) error {
		q := url.Values{"workflow_id": {path[strings.LastIndexByte(path, '/')+1:]}}
		if *status != "" {
			q.Set("status", *status)
		}
		return listRuns(cmd, q, *most)
	})
	status = filledFlag(cmd, "status", "", "only runs of this status")
	most = limitFlag(cmd, 25)
	return cmd
}

func workflowsEventCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "event RUN NAME",
		Short: "send an event to a run of a workflow, by the run's id",
		Long: "The event wakes the oldest node that waits for NAME, now or later. With --id a repeat counts once.\n" +
			"An object as payload is the node's json, any other value its text.",
		Args: cobra.ExactArgs(2), ValidArgsFunction: completes(runKind, 1),
	}
	payload := cmd.Flags().String("payload", "", "the payload as JSON: itself, @ and a file, or - for the input")
	once := cmd.Flags().String("id", "", "the event's id: a repeat with the same id counts once")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		body := map[string]any{"name": args[1]}
		if *payload != "" {
			read, err := readJSON(cmd.Context(), cmd.InOrStdin(), *payload)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--payload: %w", err))
			}
			body["payload"] = read
		}
		if *once != "" {
			body["id"] = *once
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		run, err := c.find(cmd.Context(), runKind, args[0])
		if err != nil {
			return err
		}
		type accepted struct {
			RunID string `json:"run_id"`
		}
		return callAndShow(cmd, c, http.MethodPost, workflowKind.path+"/runs/"+url.PathEscape(run)+"/events", body, func(w io.Writer, a *accepted) error {
			_, err := fmt.Fprintf(w, "%s  accepted\n", cli.ShortID(a.RunID))
			return err
		})
	})
	return cmd
}

// counted returns a number of things, as "1 node" or "2 nodes".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
