"""How tenants share what there is little of."""
