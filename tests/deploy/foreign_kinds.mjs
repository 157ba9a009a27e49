// Checks objects of kinds that are not Kubernetes' own, read as JSON from the standard input, against
// their projects' published schemas, and prints what is wrong and how many were checked.
import { readFileSync } from "node:fs";

const groups = [
  "cert-manager/cert-manager.io/v1",
  "gateway-api/gateway.networking.k8s.io/v1",
  "keda/keda.sh/v1alpha1",
  "prometheus-operator/monitoring.coreos.com/v1",
];
const kinds = {};
for (const group of groups) {
  Object.assign(kinds, await import(`${process.argv[2]}/@kubernetes-models/${group}/index.js`));
}

const errors = [];
let checked = 0;
for (const object of JSON.parse(readFileSync(0))) {
  try {
    new kinds[object.kind](object).validate();
  } catch (error) {
    errors.push(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
  checked += 1;
}
console.log(JSON.stringify({ checked, errors }));
