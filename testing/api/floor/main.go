// Holds the custom resources against the code of Kubernetes 1.27, the oldest that we support: are the CRDs valid there,
// their CEL rules and the estimated cost included, and does each case get its verdict?
//
// Reads {"crds": [...], "cases": [{"what", "object", "accept"}]} from standard input and prints each disagreement. It is
// the API server's own validation as a library, without a server; what differs between versions in wording is not
// compared.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

type input struct {
	CRDs  []v1.CustomResourceDefinition `json:"crds"`
	Cases []testCase                    `json:"cases"`
}

type testCase struct {
	What   string                 `json:"what"`
	Object map[string]interface{} `json:"object"`
	Accept bool                   `json:"accept"`
}

// kind is what the API server keeps of a CRD to judge objects.
type kind struct {
	structural *schema.Structural
	crd        *apiextensions.CustomResourceDefinition
}

func main() {
	disagreements, err := run()
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	if disagreements > 0 {
		os.Exit(1)
	}
}

func run() (int, error) {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return 0, fmt.Errorf("standard input: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	kinds := map[string]kind{}
	disagreements := 0
	for i := range in.CRDs {
		read, errs := readCRD(scheme, &in.CRDs[i])
		for _, err := range errs {
			disagreements++
			fmt.Printf("%s: %.1000s\n", in.CRDs[i].Name, err)
		}
		if read != nil {
			kinds[in.CRDs[i].Spec.Names.Kind] = *read
		}
	}
	for _, c := range in.Cases {
		name, _ := c.Object["kind"].(string)
		known, ok := kinds[name]
		if !ok {
			return 0, fmt.Errorf("%s: no CRD for kind %q", c.What, name)
		}
		errs, err := known.judge(c.Object)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.What, err)
		}
		if (len(errs) == 0) != c.Accept {
			disagreements++
			fmt.Printf("%s (%s): should be accepted: %v; errors: %.1000s\n", c.What, name, c.Accept, errs.ToAggregate())
		}
	}
	fmt.Printf("%d CRDs and %d cases, %d disagreements\n", len(in.CRDs), len(in.Cases), disagreements)
	return disagreements, nil
}

// readCRD validates a CRD as its creation does.
func readCRD(scheme *runtime.Scheme, crd *v1.CustomResourceDefinition) (*kind, field.ErrorList) {
	scheme.Default(crd)
	var internal apiextensions.CustomResourceDefinition
	if err := scheme.Convert(crd, &internal, nil); err != nil {
		return nil, field.ErrorList{field.InternalError(nil, err)}
	}
	internal.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
	errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), &internal)
	structural, err := schema.NewStructural(internal.Spec.Validation.OpenAPIV3Schema)
	if err != nil {
		return nil, append(errs, field.InternalError(nil, err))
	}
	return &kind{structural: structural, crd: &internal}, errs
}

// judge does what a create does: prune, fill in defaults, check the schema, then the CEL rules.
func (k kind) judge(object map[string]interface{}) (field.ErrorList, error) {
	pruning.Prune(object, k.structural, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, k.structural)
	defaulting.Default(object, k.structural)
	validator, _, err := validation.NewSchemaValidator(k.crd.Spec.Validation)
	if err != nil {
		return nil, err
	}
	errs := validation.ValidateCustomResource(nil, object, validator)
	if len(errs) > 0 {
		return errs, nil
	}
	rules := cel.NewValidator(k.structural, true, celconfig.PerCallLimit)
	errs, _ = rules.Validate(context.Background(), nil, k.structural, object, nil, celconfig.RuntimeCELCostBudget)
	return errs, nil
}
