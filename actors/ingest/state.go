package ingest

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Row is a document's row, with the settings of its base.
type Row struct {
	Name          string
	MediaType     string
	Size          int64
	Content       int
	File          id.FileID
	Status        lifecycle.DocumentStatus
	Error         *string
	SourceError   *string // why its source does not give its content now; nil: it gave it
	Attempts      int
	Chunks        int
	Shown         int
	Generation    int
	ReadContent   int // the content that was last read to its end, well or not; negative: it failed, and the reason is not the file's
	ReadSettings  int
	Owes          bool
	Deleted       bool
	Version       int64
	Epoch         int64
	Base          id.KnowledgeBaseID
	Number        int64
	Settings      int
	MaxTokens     int
	OverlapTokens int
	EmbedProvider *string // of the base's model; nil: it has none
	EmbedModel    *string
	EmbeddedBy    *string // the model of the vectors that are shown (model.EmbeddingModel)
}

// State is a document's row, and what an activation remembers.
type State struct {
	Missing bool // there is no row
	Row     Row
	// Entering: this activation waits for a place of the node. It is not stored.
	Entering bool
	// Building: this activation writes Row.Generation. It is not stored.
	Building bool
	// Cleaning: this activation removes what is left. It is not stored.
	Cleaning bool
	// Try counts the attempts to enter and to clean. It is not stored.
	Try int
	// Fresh: the row was just read or claimed. It is not stored.
	Fresh bool
}

// stale reports whether the document has a content, or its base has settings, with which it was
// not yet read to its end.
func (s State) stale() bool {
	return max(s.Row.ReadContent, -s.Row.ReadContent) != s.Row.Content || s.Row.ReadSettings != s.Row.Settings
}

// embeds reports whether the document's chunks get vectors.
func (r Row) embeds() bool { return r.EmbedProvider != nil && r.EmbedModel != nil }

// Used is what the embedding of a generation used.
type Used struct {
	Model     string
	TokensIn  int64
	CostUSD   float64
	Estimated bool
}

// Messages that effects send.
type (
	// Entered says that the document has a place of the node.
	Entered struct{}
	// Full says that too many documents wait for one.
	Full struct{}
	// Built says that a generation is whole.
	Built struct {
		Generation int
		Chunks     int
		MediaType  string
		EmbeddedBy *string // nil: without vectors
		Used       Used
	}
	// Unreadable says that the document cannot be indexed, and why.
	Unreadable struct {
		Generation int
		Reason     string
		Ours       bool // the reason is not the file's
		Used       Used
	}
	// Interrupted says that a generation cannot be written now, and the fault is not the file's.
	Interrupted struct {
		Generation int
		Away       bool // the provider of embeddings or the store of files is down
		Used       Used
	}
	// Overtaken says that the row has changed: another generation, another content, no document.
	Overtaken struct{ Generation int }
	// Cleaned says that nothing is left.
	Cleaned struct{}
	// Dirty says that something could not be removed now.
	Dirty struct{}
)

// Facts.
type (
	// Moved says that the row has changed.
	Moved struct{}
	// Claimed says that this activation owns the row.
	Claimed struct{}
	// Ended says how the reading of a document ended.
	Ended struct {
		Status lifecycle.DocumentStatus
		Used   Used
	}
	// Postponed says when a generation is begun again.
	Postponed struct {
		At   time.Time
		Used Used
	}
)
