package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
)

// artifactView is a file of a run as commands show it.
type artifactView struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Size      int64     `json:"size"`
	CreatedAt time.Time `json:"created_at"`
}

// mostArtifacts bounds a list: a run makes one file now.
const mostArtifacts = 100

func runsArtifactsCommand() *cobra.Command {
	var into *string
	cmd := onOne(runKind, "artifacts", "the files that a run made", func(cmd *cobra.Command, c *Client, path string) error {
		path += "/artifacts"
		items, next, err := c.Pages(cmd.Context(), path, url.Values{}, mostArtifacts)
		if err != nil {
			return err
		}
		if *into != "" {
			return saveArtifacts(cmd, c, path, items, *into)
		}
		return cli.PrintList(cmd, items, next, mostArtifacts, "files", "FILE\tNAME\tBYTES\tCREATED", func(w io.Writer, a *artifactView) {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", cli.ShortID(a.ID), cli.Visible(a.Name), a.Size, a.CreatedAt.Format(time.RFC3339))
		})
	})
	into = cmd.Flags().String("save", "", "download the files into this directory; no file is replaced")
	return cmd
}

// saveArtifacts downloads files into a directory. Their names come from a model's text: none leads out
// of the directory.
func saveArtifacts(cmd *cobra.Command, c *Client, path string, items []json.RawMessage, into string) error {
	dir, err := os.OpenRoot(into)
	if err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	defer dir.Close()
	for _, item := range items {
		var a artifactView
		if err := json.Unmarshal(item, &a); err != nil {
			return err
		}
		if err := saveArtifact(cmd.Context(), c, path+"/"+url.PathEscape(a.ID), dir, a.Name); err != nil {
			return fmt.Errorf("save %s: %w", cli.Visible(a.Name), err)
		}
		if !cli.WantsJSON(cmd) {
			fmt.Fprintln(cmd.OutOrStdout(), cli.Visible(a.Name))
		}
	}
	if cli.WantsJSON(cmd) {
		return cli.PrintJSON(cmd.OutOrStdout(), cli.JSONList{Items: items})
	}
	return nil
}

func saveArtifact(ctx context.Context, c *Client, path string, dir *os.Root, name string) (err error) {
	resp, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.problemOf(resp)
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = dir.Remove(name)
		}
	}()
	_, err = io.Copy(f, resp.Body)
	return err
}
