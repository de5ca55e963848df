// Reads {"name": "expression"} from standard input and prints every expression that Prometheus' own parser refuses.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	var expressions map[string]string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		fmt.Println("input:", err)
		os.Exit(2)
	}
	refused := 0
	promql := parser.NewParser(parser.Options{})
	for name, expression := range expressions {
		if _, err := promql.ParseExpr(expression); err != nil {
			refused++
			fmt.Printf("%s: %v: %s\n", name, err, expression)
		}
	}
	fmt.Printf("%d expressions, %d refused\n", len(expressions), refused)
}
