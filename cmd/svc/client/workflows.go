package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/flow/source"
)

func workflowsCommand() *cobra.Command {
	cmd := cli.Group("workflows", "list, read, make and publish workflows")
	cmd.Long = idHelp
	cmd.AddCommand(workflowsListCommand(), onOne(workflowKind, "get", "one workflow with its versions", show), workflowsCreateCommand(),
		publishCommand(workflowKind, "publish a workflow's latest version, an older one, or a new one", "definition", definitionHelp, readDefinition))
	return cmd
}

func workflowsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "list workflows, newest first", Args: cobra.NoArgs}
	most := limitFlag(cmd, 100)
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		items, next, err := listed(cmd, workflowKind.path, url.Values{}, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "workflows", "WORKFLOW\tID\tNAME\tPUBLISHED\tLATEST\tUPDATED", agentRow)
	})
	return cmd
}

const definitionHelp = "the definition in JSON or YAML: itself, @ and a file, or - for the input"

// readDefinition reads a definition; an error names line and column.
func readDefinition(in io.Reader, text string) (json.RawMessage, error) {
	b, err := readText(in, text)
	if err != nil {
		return nil, err
	}
	d, err := source.Read(b)
	if err != nil {
		return nil, err
	}
	return d.JSON, nil
}

func workflowsCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create --name NAME --definition JSON|YAML|@FILE|-",
		Short: "make a workflow with a first version, published with --publish",
		Args:  cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "for people")
	slug := cmd.Flags().String("slug", "", "how commands call it; made from the name without it")
	definition := cmd.Flags().String("definition", "", definitionHelp)
	publish := cmd.Flags().Bool("publish", false, "publish the version")
	cli.Required(cmd, "name", "definition")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, _ []string) error {
		read, err := readDefinition(cmd.InOrStdin(), *definition)
		if err != nil {
			return cli.WrongUse(fmt.Errorf("--definition: %w", err))
		}
		body := map[string]any{"name": *name, "definition": read}
		if *slug != "" {
			body["slug"] = *slug
		}
		return createVersioned(cmd, workflowKind, body, *publish)
	})
	return cmd
}
