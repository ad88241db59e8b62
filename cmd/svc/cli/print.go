package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// PrintJSON prints v as indented JSON.
func PrintJSON(w io.Writer, v any) error { return printJSON(w, v, "  ") }

// PrintJSONLine prints v as one line of JSON.
func PrintJSONLine(w io.Writer, v any) error { return printJSON(w, v, "") }

func printJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, Harmless(strings.ToValidUTF8(b.String(), "\ufffd")))
	return err
}

// JSONList is a list as --json shows it.
type JSONList struct {
	Items []json.RawMessage `json:"items"`
	Next  *string           `json:"next_cursor,omitempty"`
}

// PrintList prints the items of a list, one a row, or as JSON.
func PrintList[V any](cmd *cobra.Command, items []json.RawMessage, next *string, most int, things, head string, row func(w io.Writer, v *V)) error {
	if WantsJSON(cmd) {
		return PrintJSON(cmd.OutOrStdout(), JSONList{items, next})
	}
	if len(items) == 0 {
		return PrintNone(cmd, things)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, item := range items {
		v := new(V)
		if err := json.Unmarshal(item, v); err != nil {
			return err
		}
		row(w, v)
	}
	if err := w.Flush(); err != nil || next == nil {
		return err
	}
	return PrintMore(cmd, most)
}

// PrintNone tells a person that a list is empty, or that no item fits the filters. The output, which
// programs count, stays empty.
func PrintNone(cmd *cobra.Command, things string) error {
	said := "no " + things
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "limit" && f.Name != "json" {
			said = "no " + things + " fit these filters"
		}
	})
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), said)
	return err
}

// PrintMore tells a person that a list has more items than were asked for.
func PrintMore(cmd *cobra.Command, most int) error {
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --limit %d\n", 10*most)
	return err
}

// Dash returns s, or a dash for an empty string.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Moment returns a time, or a dash for none.
func Moment(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return at.Format(time.RFC3339)
}
