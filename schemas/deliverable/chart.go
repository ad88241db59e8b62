package deliverable

import "strings"

// chartKind is how a table is drawn; empty: it is not.
type chartKind string

const (
	columnChart chartKind = "column"
	barChart    chartKind = "bar"
	lineChart   chartKind = "line"
	pieChart    chartKind = "pie"
)

// Limits of a chart: what is beyond is in the table only.
const (
	maxSeries     = 8
	maxCategories = 100
)

// readMark reads the mark above a table that becomes a chart: "<!-- chart: bar -->".
func readMark(comment string) chartKind {
	inner := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(comment, "<!--"), "-->"))
	name, kind, _ := strings.Cut(inner, ":")
	if !strings.EqualFold(strings.TrimSpace(name), "chart") {
		return ""
	}
	switch k := chartKind(strings.ToLower(strings.TrimSpace(kind))); k {
	case columnChart, barChart, lineChart, pieChart:
		return k
	}
	return ""
}

// drawing is what a chart shows.
type drawing struct {
	kind       chartKind
	categories []string
	series     []series
}

type series struct {
	name   string
	column int // of the table
	values []float64
	has    []bool // which of the values are numbers
	format string
}

// drawing returns the chart of a table, nil if it has none. A series is a column of which at least
// one cell is a number and no cell is text.
func (b *block) drawing(header []string, rows [][]value) *drawing {
	if b.chart == "" || len(rows) == 0 || len(header) < 2 {
		return nil
	}
	shown := rows[:min(len(rows), maxCategories)]
	d := &drawing{kind: b.chart}
	for i := range shown {
		d.categories = append(d.categories, cutRunes(strings.TrimSpace(plainText(b.rows[i+1][0])), 60))
	}
	for c := 1; c < len(header) && len(d.series) < maxSeries; c++ {
		s := series{name: cutRunes(header[c], 60), column: c}
		numbers := false
		for _, row := range shown {
			n, is := row[c].data.(float64)
			if !is && row[c].data != nil {
				numbers = false
				break
			}
			if is && s.format == "" {
				s.format = row[c].format
			}
			numbers = numbers || is
			s.values, s.has = append(s.values, n), append(s.has, is)
		}
		if !numbers || len(s.values) < len(shown) {
			continue
		}
		d.series = append(d.series, s)
		if d.kind == pieChart {
			for _, n := range s.values {
				if n < 0 { // a negative part of a whole cannot be drawn
					return nil
				}
			}
			break
		}
	}
	if len(d.series) == 0 {
		return nil
	}
	return d
}
