package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/pause"
)

// watchPause is the time between two polls of approvals watch.
const watchPause = 2 * time.Second

func approvalsWatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [ID]",
		Short: "show approvals as they are requested and decided; with an ID, wait until that one is decided",
		Args:  cobra.MaximumNArgs(1), ValidArgsFunction: completes(pendingKind, 1),
	}
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		only := ""
		if len(args) == 1 {
			if only, err = c.find(cmd.Context(), approvalKind, args[0]); err != nil {
				return err
			}
		}
		w := &approvalWatch{cmd: cmd, c: c, only: only, open: map[string]bool{}}
		err = w.follow(cmd.Context())
		if only == "" && cmd.Context().Err() != nil {
			return nil // interrupted by the user
		}
		return err
	})
	return cmd
}

// approvalWatch polls the pending approvals.
type approvalWatch struct {
	cmd  *cobra.Command
	c    *Client
	only string          // the one to wait for; empty: all
	open map[string]bool // shown and not decided yet
}

// follow polls until the one approval is decided, or for ever. It waits up to a minute for a
// service that is away.
func (w *approvalWatch) follow(ctx context.Context) error {
	lost := time.Time{}
	for {
		done, err := w.look(ctx)
		var refused *APIError
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			lost = time.Time{}
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > cmp.Or(w.c.patience, usualPatience):
			return fmt.Errorf("the service was lost: %w", err)
		}
		if !pause.For(ctx, watchPause) {
			return ctx.Err()
		}
	}
}

// look polls once and shows the changes.
func (w *approvalWatch) look(ctx context.Context) (done bool, err error) {
	if w.only != "" {
		a, err := w.one(ctx, w.only)
		if err != nil || a.Status == "pending" {
			return false, err
		}
		return true, w.show(ctx, a)
	}
	items, _, err := w.c.Pages(ctx, approvalKind.path, url.Values{"status": {"pending"}}, maxLooked)
	if err != nil {
		return false, err
	}
	still := map[string]bool{}
	for _, item := range slices.Backward(items) { // oldest first
		var a watched
		if err := a.read(item); err != nil {
			return false, err
		}
		if still[a.ID] = true; w.open[a.ID] {
			continue
		}
		if err := w.show(ctx, &a); err != nil {
			return false, err
		}
		w.open[a.ID] = true
	}
	for id := range w.open {
		if still[id] {
			continue
		}
		a, err := w.one(ctx, id)
		var gone *APIError
		if errors.As(err, &gone) && (gone.Status == http.StatusNotFound || gone.Status == http.StatusForbidden) {
			delete(w.open, id) // its run was erased, or it escalated to a higher role
			continue
		}
		if err != nil {
			return false, err
		}
		if err := w.show(ctx, a); err != nil {
			return false, err
		}
		delete(w.open, id)
	}
	return false, nil
}

// watched is an approval with its JSON.
type watched struct {
	ApprovalView
	raw json.RawMessage
}

func (a *watched) read(raw json.RawMessage) error {
	a.raw = raw
	return json.Unmarshal(raw, &a.ApprovalView)
}

func (w *approvalWatch) one(ctx context.Context, id string) (*watched, error) {
	var raw json.RawMessage
	if err := w.c.fetch(ctx, approvalKind.at(id), &raw); err != nil {
		return nil, err
	}
	a := new(watched)
	return a, a.read(raw)
}

func (w *approvalWatch) show(ctx context.Context, a *watched) error {
	out := w.cmd.OutOrStdout()
	if cli.WantsJSON(w.cmd) {
		return cli.PrintJSONLine(out, a.raw)
	}
	if a.Status != "pending" {
		_, err := fmt.Fprintln(out, a.outcome())
		return err
	}
	lines, err := w.c.describe(ctx, &a.ApprovalView, false)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}
