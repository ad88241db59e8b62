package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// Agents and workflows are made, versioned and published alike.

// versionAnswer is the answer to calls that make or publish a version.
type versionAnswer struct {
	Agent    *agentView `json:"agent"`
	Workflow *agentView `json:"workflow"`
	Version  struct{ Version int }
	Warnings []string `json:"warnings"`
}

// of is the agent or workflow of the answer.
func (v *versionAnswer) of() *agentView { return cmp.Or(v.Agent, v.Workflow, &agentView{}) }

func (v *versionAnswer) print(cmd *cobra.Command, k kind, raw json.RawMessage) error {
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), raw)
	}
	for _, w := range v.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", cli.Visible(w))
	}
	of := v.of()
	state := fmt.Sprintf("version %s is published", of.published())
	if of.Published == nil {
		state = fmt.Sprintf("version %d is a draft: svc %ss publish %s", of.Latest, k.what, cli.Visible(of.Slug))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  %s\n", cli.Visible(of.Slug), cli.ShortID(of.ID), state)
	return err
}

// createVersioned makes a thing with its first version, and publishes that with publish.
func createVersioned(cmd *cobra.Command, k kind, body map[string]any, publish bool) error {
	c, err := newClient()
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := c.Call(cmd.Context(), http.MethodPost, k.path, body, &raw); err != nil {
		return err
	}
	var made versionAnswer
	if err := json.Unmarshal(raw, &made); err != nil {
		return err
	}
	if publish {
		return c.publishVersion(cmd, k, made.of().ID, 1)
	}
	return made.print(cmd, k, raw)
}

func (c *Client) publishVersion(cmd *cobra.Command, k kind, id string, version int) error {
	var raw json.RawMessage
	if err := c.Call(cmd.Context(), http.MethodPost, fmt.Sprintf("%s/versions/%d/publish", k.at(id), version), nil, &raw); err != nil {
		return err
	}
	var v versionAnswer
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	return v.print(cmd, k, raw)
}

// publishCommand publishes a version: the latest one, an older one, or a new one of the
// document that the flag called field gives.
func publishCommand(k kind, short, field, help string, read func(context.Context, io.Reader, string) (document, error)) *cobra.Command {
	var version *int
	var doc *string
	cmd := onOne(k, "publish", short, func(cmd *cobra.Command, c *Client, path string) error {
		id := path[strings.LastIndexByte(path, '/')+1:]
		n := *version
		switch {
		case cmd.Flags().Changed(field):
			given, err := read(cmd.Context(), cmd.InOrStdin(), *doc)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--%s: %w", field, err))
			}
			var made versionAnswer
			if err := c.Call(cmd.Context(), http.MethodPost, path+"/versions", map[string]any{field: given.body}, &made); err != nil {
				return given.explained(err)
			}
			n = made.Version.Version
		case !cmd.Flags().Changed("version"):
			var got versionAnswer
			if err := c.Call(cmd.Context(), http.MethodGet, path, nil, &got); err != nil {
				return err
			}
			n = got.of().Latest
		}
		return c.publishVersion(cmd, k, id, n)
	})
	version = cmd.Flags().Int("version", 0, "this version; the latest without it")
	doc = cmd.Flags().String(field, "", "make a new version first: "+help)
	cmd.MarkFlagsMutuallyExclusive("version", field)
	return cmd
}
