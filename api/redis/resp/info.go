package resp

import (
	"fmt"
	"slices"
	"strings"
)

// Section is a section of INFO, whose name is in lower case.
type Section struct {
	Name  string
	Lines [][2]any // names and values
}

// AppendInfo appends the sections that the names select, or all sections if there are no names.
func AppendInfo(dst []byte, sections []Section, names [][]byte, resp3 bool) []byte {
	var text strings.Builder
	for _, section := range sections {
		asked := func(name []byte) bool {
			ask := strings.ToLower(string(name))
			return ask == section.Name || ask == "all" || ask == "default" || ask == "everything"
		}
		if len(names) > 0 && !slices.ContainsFunc(names, asked) {
			continue
		}
		if text.Len() > 0 {
			text.WriteString("\r\n")
		}
		fmt.Fprintf(&text, "# %s%s\r\n", strings.ToUpper(section.Name[:1]), section.Name[1:])
		for _, line := range section.Lines {
			fmt.Fprintf(&text, "%s:%v\r\n", line[0], line[1])
		}
	}
	return AppendText(dst, text.String(), resp3)
}

// AppendSettings appends a map of the settings whose names match a pattern.
func AppendSettings(dst []byte, settings [][2]string, patterns [][]byte, resp3 bool) []byte {
	found := slices.DeleteFunc(settings, func(pair [2]string) bool {
		return !slices.ContainsFunc(patterns, func(p []byte) bool { return MatchGlob(strings.ToLower(string(p)), []byte(pair[0])) })
	})
	dst = AppendMap(dst, len(found), resp3)
	for _, pair := range found {
		dst = AppendBulk(AppendBulk(dst, pair[0]), pair[1])
	}
	return dst
}
