package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"agentsvc/persistence/knowledge"
	"agentsvc/schemas/id"
	hits "agentsvc/schemas/knowledge"
	"agentsvc/transport/parser"
	"agentsvc/transport/platform"
	"agentsvc/transport/toolbox"
)

// searcher searches knowledge bases for the routes.
type searcher struct{ index *knowledge.Index }

// Search implements platform.Searcher.
func (s searcher) Search(ctx context.Context, t id.TenantID, q platform.Query) ([]hits.Hit, error) {
	return s.index.Search(ctx, knowledge.Query{Tenant: t, Base: q.Base, Text: q.Text, TopK: q.TopK, Viewer: q.Viewer, Explain: q.Explain})
}

// runSearcher searches knowledge bases for runs.
type runSearcher struct{ index *knowledge.Index }

// Search implements toolbox.Searcher.
func (s runSearcher) Search(ctx context.Context, q toolbox.Query) ([]hits.Hit, error) {
	return s.index.Search(ctx, knowledge.Query{Tenant: q.Tenant, Base: q.Base, Text: q.Text, TopK: q.TopK, Viewer: q.Viewer, MaxBytes: q.MaxBytes, Run: q.Run, Agent: q.Agent})
}

// openParser returns the reader of documents, whose children are this binary.
func openParser() (*parser.Parser, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary, which reads documents in processes of its own: %w", err)
	}
	return parser.New(parser.Config{Command: []string{self, parser.Command}}), nil
}

// parseCommand is the child of a parser. People have no use for it.
func parseCommand() *cobra.Command {
	return &cobra.Command{Use: parser.Command, Short: "read a document for a node (internal)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return parser.Child(cmd.InOrStdin(), cmd.OutOrStdout()) }}
}
